"""The native RL job: model, generation, training, data and the loop over them."""
