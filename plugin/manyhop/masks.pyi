from manyhop_train.masks import *
