"""A user's own tasks: pairs with a label, triplets, retrieval, labelled texts; read, described and stored."""
