from manyhop_embedding import Embedding as Embedding
from manyhop_embedding.optim import *
