"""Online gradients as pure functions: from a plan and a rule to what a learner does with a
sequence. No framework is known here."""
