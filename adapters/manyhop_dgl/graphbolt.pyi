from manyhop_graphbolt import *
