"""All that is to be measured of SGLang on a GPU, in few calls."""
