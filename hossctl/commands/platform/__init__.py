"""Commands on a platform as a whole: the local one and its workers, its nodes, its policy, how it does."""
