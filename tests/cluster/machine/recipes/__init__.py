"""How each binary of the test cluster is got, from package clients alone. One module per part.

A module has `make(into, work)`: fill the folder `into`, with `work` as scratch space. Its own text is what its cache
entry is named by, so that a changed recipe is followed anew.
"""
