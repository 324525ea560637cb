"""From recipes, lengths and data to exact block-sparse layouts; numpy and maskc.core only."""

from maskc.layout.build import build as build
from maskc.layout.build import check_loads as check_loads
from maskc.layout.build import count as count
from maskc.layout.build import tile_shape as tile_shape
from maskc.layout.classes import Classes as Classes
from maskc.layout.classes import classes as classes
from maskc.layout.data import bind_arrays as bind_arrays
from maskc.layout.data import check_lengths as check_lengths
from maskc.layout.data import split_call_data as split_call_data
from maskc.layout.distances import distance_words as distance_words
from maskc.layout.host import to_host as to_host
from maskc.layout.lists import build_batch as build_batch
from maskc.layout.lists import extents as extents
from maskc.layout.lists import kernel_lists as kernel_lists
from maskc.layout.lists import sequence_arrays as sequence_arrays
from maskc.layout.parts import Tiled as Tiled
from maskc.layout.parts import obstacle as obstacle
from maskc.layout.parts import time_in_pairs as time_in_pairs
from maskc.layout.spans import Spans as Spans
from maskc.layout.spans import list_spans as list_spans
from maskc.layout.spans import range_spans as range_spans
from maskc.layout.spans import stack_spans as stack_spans
from maskc.layout.work import Work as Work
from maskc.layout.work import backward_work as backward_work
from maskc.layout.work import forward_work as forward_work
