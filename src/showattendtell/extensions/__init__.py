"""Side features. The core imports none of them: a folder can be deleted with its options, its tests and its page."""
