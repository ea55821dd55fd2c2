"""Small models, trainers on the CPU, ranks and jobs."""
