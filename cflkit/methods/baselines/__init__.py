"""Methods to compare with, one file each, named as in the literature.

They are those of the papers' tables, and three references: each client alone, FedAvg fine-tuned at
each client, and FedAvg within the true clusters.
"""
