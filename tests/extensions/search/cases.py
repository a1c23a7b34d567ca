"""Searches in the tests of the core."""

NOT_RUN = {"storage=postgresql://|storage=/shared/": "needs a server or shared disk; test_search.py has one"}
CHOSEN_WITH = {"hydra/sweeper/": "sweep=own"}
