# A small table on the built-in data set, without a download: a trial, and a pattern for a table of your own.
#
#   make -f recipes/shapes.mk -n     the plan: every command that is left to run
#   make -f recipes/shapes.mk        run it; after an interruption, continue it
#   make -f recipes/shapes.mk -j 2   two commands at a time
#   make -f recipes/shapes.mk ROWS='none soft' SEEDS=1 DECODINGS=beam3 SETTINGS=trainer.max_epochs=1 RUNS=runs/short
#
# rules.mk describes the variables. In a rule, % is the seed and $(<D) the folder of the first file after the colon.
TABLE := shapes
RUNS ?= runs/paper-shapes
SEEDS ?= 1 2
ROWS ?= none soft hard soft_cider soft_average soft_ensemble
include $(dir $(lastword $(MAKEFILE_LIST)))rules.mk

$(RUNS)/none/%/trained:
	$(call train,dataset=shapes attention=none trainer.max_epochs=3)
$(RUNS)/soft/%/trained:
	$(call train,dataset=shapes attention=soft trainer.max_epochs=3)
$(RUNS)/hard/%/trained:
	$(call train,dataset=shapes attention=hard trainer.max_epochs=3)
# a second stage, which starts from the best weights of another row
$(RUNS)/soft_cider/%/trained: $(RUNS)/soft/%/trained
	$(call train,dataset=shapes attention=soft reward=cider trainer.max_epochs=1 init_from=$(<D)/best.ckpt)
# the mean of the weights of both stages
$(RUNS)/soft_average/%/trained: $(RUNS)/soft/%/trained $(RUNS)/soft_cider/%/trained
	$(average)
# an ensemble of all seeds
$(RUNS)/soft_ensemble/%.json: $(call trained,soft)
	$(call evaluate,$(DECODING))
