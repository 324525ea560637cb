"""What is asked of masks at given lengths, and of two masks at once."""

from maskc.questions.asked import count as count
from maskc.questions.asked import layout as layout
