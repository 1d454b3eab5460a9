"""Where trainings are run one after the other or side by side: their rows, their places, and what a worker keeps."""
