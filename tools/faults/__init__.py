"""Real faults on a platform of real processes, and a judgement of what became of its promises.

`python -m tools.faults --fault NAME --runs N` prints a row of docs/reliability.md. A run has clients that
submit and delete pods, a recorder, and one fault that is drawn from a seed. Afterwards the checker of
histories and `hoss audit` judge. `machines` has networks of namespaces, `platform` the processes, `load` the
clients, `catalogue` the faults, and `run` a run with its judgement."""
