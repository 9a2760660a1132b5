"""What puts Nereus on a cluster: images, manifests, units, compose, and the tools that make and check them."""
