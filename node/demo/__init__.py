"""The main job on one machine: three real daemons, one of them killed in the middle of a turn, one answer."""
