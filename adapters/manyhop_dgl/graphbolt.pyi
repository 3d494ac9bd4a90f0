from manyhop_graphbolt import *
from manyhop_graphbolt import __all__ as __all__
