"""What Denizen remembers: records, the SQLite store, embeddings, the vector index and skills."""
