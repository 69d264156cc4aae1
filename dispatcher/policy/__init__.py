"""Policy documents, the policy in force with its sources, and dry runs."""
