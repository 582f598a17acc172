"""OCI containers: bundles, the runtimes that start them, the engines that own them, and what boots inside."""
