"""A Relax graph made smaller and lowered to tensor functions: passes, and design spaces for MetaSchedule."""
