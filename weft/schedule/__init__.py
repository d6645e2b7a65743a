"""Layer 3: schedules — pure rewrites of loop IR, each recorded as one step of a trace."""

from weft.schedule.intrinsic import BufferView, TensorIntrin
from weft.schedule.schedule import Schedule, Stage
from weft.schedule.trace import Step, Trace

__all__ = ["BufferView", "Schedule", "Stage", "Step", "TensorIntrin", "Trace"]
