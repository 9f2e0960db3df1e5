"""What the leak test is made of: markers, a pipeline and a model that plant them, watchers, and readers of surfaces."""
