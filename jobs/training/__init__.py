"""Training of block-diffusion drafters: corpus, cached verifier features, blocks and their loss, evaluation.

Nothing here uses Ray, so that it also runs on a bare GPU machine.
"""
