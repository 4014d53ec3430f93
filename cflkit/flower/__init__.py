"""The same methods in a real federation: clients that are processes elsewhere, through Flower.

A method's round is a conversation of requests and answers (`cflkit.federation.requests`). In the
simulation, a `Federation` answers. Here, `remote.RemoteFederation` sends each request as Flower
messages to the clients, and `node` answers them beside the client's data. Nothing else differs, so
the same seed gives the same models.

This package needs the extra ``flower``: ``pip install "cflkit[flower]"``.
"""
