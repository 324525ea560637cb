"""Questions about masks at given lengths, and about two masks at once."""

from maskc.questions.asked import count as count
from maskc.questions.asked import layout as layout
from maskc.questions.cache import cache as cache
from maskc.questions.compare import diff as diff
from maskc.questions.compare import equals as equals
from maskc.questions.compare import subset_of as subset_of
