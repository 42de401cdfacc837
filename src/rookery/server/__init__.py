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

On the network, from the socket inwards:

| file | is |
|---|---|
| `service.py`, `connection.py` | the server of a port, and a connection with its bounds |
| `application.py`, `messages.py` | its pages, and a message from head to answer |
| `gate.py`, `keys.py`, `limits.py` | who may speak, by which key, and how much |
| `body.py`, `protocol.py`, `tensors.py` | what is on the wire: read, signed, packed |
| `parcels.py`, `compress.py` | parameters ready to be sent, and smaller updates |
| `refusals.py`, `metrics.py` | what is said to others, and what is counted |
| `client.py` | the same server seen from elsewhere |
| `extra.py` | the packages that only the network needs |

So that clients stay private:

| file | is |
|---|---|
| `promise.py`, `privacy.py`, `ledger.py` | a budget: what is promised, the noise, what is spent |
| `secure.py`, `rounds.py` | the server that sees sums alone, and one sum in time |
| `participant.py` | a client's side of it |
| `sums.py`, `letters.py` | the words that both sides use, and how they travel |
| `secrets.py`, `masks.py`, `shamir.py` | the cryptography: who knows what, masks, shares |
"""
