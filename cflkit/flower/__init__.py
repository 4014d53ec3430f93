"""The same methods in a real federation, through Flower; and any strategy of Flower, watched.

A method's round is a conversation of requests and answers (`cflkit.federation.requests`). In the
simulation, a `Federation` answers. Here, `server_app.RemoteFederation` sends each request as Flower
messages to the clients, and `client_app` answers them beside the client's data, in processes that
`node` starts. Nothing else differs, so the same seed gives the same models.

Strangers are kept out by `server` and `keys`. A node trusts its server: whoever runs the server can
read most samples of a small client, and `node` tells the owner so.

This package needs the extra ``flower``: ``pip install "cflkit[flower]"``.
"""
