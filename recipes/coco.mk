# The paper's Table 1 on COCO, or on Flickr30k, with VGG-19 as in the paper, and baselines. Not run by this project.
#
#   make -f recipes/coco.mk ROOT=DIR -n                   the plan: every command that is left to run
#   make -f recipes/coco.mk ROOT=DIR
#   make -f recipes/coco.mk ROOT=DIR DATASET=flickr30k
#
# rules.mk describes the variables.
DATASET ?= coco
TABLE := $(DATASET)
RUNS ?= runs/paper-$(DATASET)
ROWS ?= nic log_bilinear soft hard none dot additive
include $(dir $(lastword $(MAKEFILE_LIST)))rules.mk

$(RUNS)/nic/%/trained:
	$(call train,experiment=paper/$(DATASET) decoder=nic)
$(RUNS)/log_bilinear/%/trained:
	$(call train,experiment=paper/$(DATASET) decoder=log_bilinear)
$(RUNS)/soft/%/trained:
	$(call train,experiment=paper/$(DATASET) loss.doubly_stochastic_weight=0.1)
$(RUNS)/hard/%/trained:
	$(call train,experiment=paper/$(DATASET) attention=hard)
$(RUNS)/none/%/trained:
	$(call train,experiment=paper/$(DATASET) attention=none)
$(RUNS)/dot/%/trained:
	$(call train,experiment=paper/$(DATASET) attention=dot)
$(RUNS)/additive/%/trained:
	$(call train,experiment=paper/$(DATASET) attention=additive)
