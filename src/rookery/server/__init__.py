"""Several learners, one set of parameters: gradients or deltas in, versions out.

| file | is |
|---|---|
| `parameters.py` | the parameter server, as an object in one process |
| `federated.py` | the same for clients that train for a while before they push |
| `aggregate.py` | the rules by which many updates become one |
| `machine.py` | its state, and all that can happen to it |
| `layout.py` | named arrays as one vector; what does not fit is refused |
| `stepper.py` | the vector, and the optimizer that moves it |
| `roster.py` | who takes part, who is not believed any more |
| `rules.py` | the settings of a server, and the arithmetic of rounds and ages |
| `journal.py`, `store.py` | what survives a `kill -9` |
"""
