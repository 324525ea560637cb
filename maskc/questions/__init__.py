"""Questions about masks at given lengths, and about two masks at once."""

from maskc.questions.cache import cache as cache
from maskc.questions.compare import diff as diff
from maskc.questions.compare import equals as equals
from maskc.questions.compare import subset_of as subset_of
from maskc.questions.mask_at_lengths import count as count
from maskc.questions.mask_at_lengths import layout as layout
