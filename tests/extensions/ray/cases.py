"""Ray in the tests of the core."""

CLUSTER = "needs a cluster; the tests start their own"
NOT_RUN = dict.fromkeys(["hydra/launcher=ray|^ray start", "showattendtell caption .*workers=", "features=ray"], CLUSTER)
