"""kube-scheduler's own file, KubeSchedulerConfiguration: its profiles as profiles of HOSS."""
