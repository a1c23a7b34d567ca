# Ablations of soft attention on Flickr8k: one change each, on the smaller grids of EfficientNet-lite0. A row takes 11 to
# 15 minutes on one core with trainer.precision=bf16-mixed.
#
#   make -f recipes/ablations.mk ROOT=DIR BOXES=dataset.entities=entities.zip SETTINGS=trainer.precision=bf16-mixed
#
# The row `supervised` needs DIR/entities.zip. rules.mk describes the variables.
TABLE := ablations
RUNS ?= runs/paper-flickr8k
DECODINGS ?= beam1 beam3 beam5
ROWS ?= soft_lite0 hard_lite0 no_doubly_stochastic no_gate arctic by_bleu length_buckets transformer ema supervised
include $(dir $(lastword $(MAKEFILE_LIST)))rules.mk

SOFT := experiment=paper/flickr8k_soft_lite0

$(RUNS)/soft_lite0/%/trained:
	$(call train,$(SOFT))
$(RUNS)/hard_lite0/%/trained:
	$(call train,experiment=paper/flickr8k_hard_lite0)
$(RUNS)/no_doubly_stochastic/%/trained:
	$(call train,$(SOFT) loss.doubly_stochastic_weight=0)
$(RUNS)/no_gate/%/trained:
	$(call train,$(SOFT) attention.gate=none)
# the model and the loss of the paper's code
PLACES := 'decoder.dropout_places=[start,hidden,output]'
$(RUNS)/arctic/%/trained:
	$(call train,$(SOFT) variant=arctic $(PLACES))
$(RUNS)/by_bleu/%/trained:
	$(call train,$(SOFT) monitor=bleu4)
$(RUNS)/length_buckets/%/trained:
	$(call train,$(SOFT) data.bucketing=paper data.group_by_image=false)
$(RUNS)/transformer/%/trained:
	$(call train,$(SOFT) decoder=transformer decoder.num_layers=2 decoder.dropout=0.3 optimizer.lr=5e-4)
$(RUNS)/ema/%/trained:
	$(call train,$(SOFT) callbacks=ema)
$(RUNS)/supervised/%/trained:
	$(call train,$(SOFT) dataset.entities=entities.zip loss.supervision_weight=1 loss.supervision_loss=correctness)
