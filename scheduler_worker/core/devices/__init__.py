"""Devices by Dynamic Resource Allocation: which devices of a node satisfy a pod's claims.

`cel_syntax` and `cel` evaluate the expressions by which claims select devices. `pools` says what a node is
offered, and what of it is in use. `allocator` chooses. Rules and texts are kube-scheduler's of release
1.36."""
