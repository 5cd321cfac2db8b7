"""What can go wrong in gated_llm. Each message says what was wrong and what to do; none repeats a prompt."""


class GatedError(Exception):
    """Base of every error that gated_llm raises on purpose."""


class WeightsError(GatedError):
    """A model could not be fetched, checked, converted or read."""


class PromptError(GatedError, ValueError):
    """The prompt is empty, malformed or longer than the model's context."""


class SamplingError(GatedError, ValueError):
    """A generation setting is outside its range."""


class BudgetError(GatedError, ValueError):
    """The depth budget is not one that this model can keep."""


class PlanError(GatedError):
    """A depth plan is damaged or was made for another model."""


class TraceError(GatedError):
    """A depth trace is damaged, of another form, or does not fit what it is said to be of."""


class Busy(GatedError):
    """The model has no room for another request now."""


class LogitsError(GatedError):
    """The model gave logits that are not numbers: the checkpoint is broken."""
