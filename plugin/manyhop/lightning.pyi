from manyhop_train.lightning import *
