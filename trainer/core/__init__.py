"""What every room needs and no recommender knows of: errors, storage, processes. Uses no other room."""
