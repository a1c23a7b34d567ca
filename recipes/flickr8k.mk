# The paper's Table 1 on Flickr8k, and what raises its scores: rewards, weight averages of stages, whole photographs, three
# encoders, captions of an ensemble, and ensembles. A row takes 14 to 50 minutes on one core.
#
#   make -f recipes/flickr8k.mk ROOT=DIR -n      the plan: every command that is left to run
#   make -f recipes/flickr8k.mk ROOT=DIR -j 2    run it, two commands at a time; after an interruption, continue it
#   make -f recipes/flickr8k.mk ROOT=DIR ROWS='soft hard' SEEDS=1 DECODINGS=beam3
#   make -f recipes/flickr8k.mk ROOT=DIR BOXES=dataset.entities=entities.zip SETTINGS=trainer.precision=bf16-mixed
#
# rules.mk describes the variables; shapes.mk is the same on a small scale. In a rule, % is the seed and $(<D) the folder
# of the first file after the colon.
TABLE := flickr8k
RUNS ?= runs/paper-flickr8k
ROWS ?= nic log_bilinear soft hard none dot additive soft_cider hard_cider hard_warm hard_warm_cider soft_average \
  hard_average soft_whole soft_whole_cider soft_whole_average soft_encoders soft_encoders_cider soft_encoders_average \
  soft_encoders_distilled soft_encoders_distilled_cider soft_encoders_distilled_average hard_encoders \
  hard_encoders_cider hard_encoders_average soft_ensemble soft_cider_ensemble cider_ensemble stages_ensemble \
  soft_whole_cider_ensemble whole_ensemble encoders_ensemble encoders_rewards_ensemble
include $(dir $(lastword $(MAKEFILE_LIST)))rules.mk

SOFT := experiment=paper/flickr8k_soft
HARD := experiment=paper/flickr8k_hard
REWARD := reward=cider reward.bleu4=2 trainer.max_epochs=4
SHORT := optimizer.lr=4e-4 trainer.max_epochs=4
ENCODERS := encoder=efficientnet_lite0_lite1_lite2 features.dtype=int8 features.precision=bfloat16
INIT = init_from=$(<D)/best.ckpt

# the paper's models, and baselines
$(RUNS)/nic/%/trained:
	$(call train,experiment=paper/flickr8k decoder=nic)
$(RUNS)/log_bilinear/%/trained:
	$(call train,experiment=paper/flickr8k decoder=log_bilinear)
$(RUNS)/soft/%/trained:
	$(call train,$(SOFT))
$(RUNS)/hard/%/trained:
	$(call train,$(HARD))
$(RUNS)/none/%/trained:
	$(call train,experiment=paper/flickr8k attention=none)
$(RUNS)/dot/%/trained:
	$(call train,experiment=paper/flickr8k attention=dot)
$(RUNS)/additive/%/trained:
	$(call train,experiment=paper/flickr8k attention=additive)

# second stages, which start from the weights of another row, and averages of both stages
$(RUNS)/soft_cider/%/trained: $(RUNS)/soft/%/trained
	$(call train,$(SOFT) $(REWARD) $(INIT))
$(RUNS)/hard_cider/%/trained: $(RUNS)/hard/%/trained
	$(call train,$(HARD) $(REWARD) $(INIT))
$(RUNS)/hard_warm/%/trained: $(RUNS)/soft/%/trained
	$(call train,$(HARD) attention.gate=scalar $(SHORT) $(INIT))
$(RUNS)/hard_warm_cider/%/trained: $(RUNS)/hard_warm/%/trained
	$(call train,$(HARD) attention.gate=scalar $(REWARD) $(INIT))
$(RUNS)/soft_average/%/trained: $(RUNS)/soft/%/trained $(RUNS)/soft_cider/%/trained
	$(average)
$(RUNS)/hard_average/%/trained: $(RUNS)/hard_warm/%/trained $(RUNS)/hard_warm_cider/%/trained
	$(average)

# whole photographs instead of their centers
$(RUNS)/soft_whole/%/trained:
	$(call train,$(SOFT) encoder.crop_mode=squash)
$(RUNS)/soft_whole_cider/%/trained: $(RUNS)/soft_whole/%/trained
	$(call train,$(SOFT) encoder.crop_mode=squash $(REWARD) $(INIT))
$(RUNS)/soft_whole_average/%/trained: $(RUNS)/soft_whole/%/trained $(RUNS)/soft_whole_cider/%/trained
	$(average)

# three encoders: 6.1 GB of grids
$(RUNS)/soft_encoders/%/trained:
	$(call train,$(SOFT) $(ENCODERS))
$(RUNS)/soft_encoders_cider/%/trained: $(RUNS)/soft_encoders/%/trained
	$(call train,$(SOFT) $(ENCODERS) $(REWARD) $(INIT))
$(RUNS)/soft_encoders_average/%/trained: $(RUNS)/soft_encoders/%/trained $(RUNS)/soft_encoders_cider/%/trained
	$(average)
$(RUNS)/hard_encoders/%/trained: $(RUNS)/soft_encoders/%/trained
	$(call train,$(HARD) $(ENCODERS) attention.gate=scalar $(SHORT) $(INIT))
$(RUNS)/hard_encoders_cider/%/trained: $(RUNS)/hard_encoders/%/trained
	$(call train,$(HARD) $(ENCODERS) attention.gate=scalar $(REWARD) $(INIT))
$(RUNS)/hard_encoders_average/%/trained: $(RUNS)/hard_encoders/%/trained $(RUNS)/hard_encoders_cider/%/trained
	$(average)

# also trained on captions that an ensemble of all seeds writes for the training images
CAPTIONS := $(RUNS)/soft_encoders_distilled/captions-train.json
$(CAPTIONS): $(call trained,soft_encoders soft_encoders_cider)
	$(call evaluate,split=train 'metrics=[bleu]' decoding.beam_size=5 decoding.min_length=1 decoding.allow_unk=false)
DISTILLED := distillation.captions=$(CAPTIONS) distillation.keep_references=true monitor=cider
$(RUNS)/soft_encoders_distilled/%/trained: $(RUNS)/soft_encoders/%/trained $(CAPTIONS)
	$(call train,$(SOFT) $(ENCODERS) $(DISTILLED) $(SHORT) $(INIT))
$(RUNS)/soft_encoders_distilled_cider/%/trained: $(RUNS)/soft_encoders_distilled/%/trained
	$(call train,$(SOFT) $(ENCODERS) $(REWARD) $(INIT))
$(RUNS)/soft_encoders_distilled_average/%/trained: $(RUNS)/soft_encoders_distilled/%/trained \
  $(RUNS)/soft_encoders_cider/%/trained $(RUNS)/soft_encoders_distilled_cider/%/trained
	$(average)

# ensembles of all seeds of these rows
soft_ensemble := soft
soft_cider_ensemble := soft_cider
cider_ensemble := soft_cider hard_warm_cider
stages_ensemble := soft soft_cider hard_warm_cider
soft_whole_cider_ensemble := soft_whole_cider
whole_ensemble := soft_whole soft_whole_cider
encoders_ensemble := soft_encoders soft_encoders_cider
encoders_rewards_ensemble := soft_encoders_distilled_average soft_encoders_cider hard_encoders_cider
$(foreach row,$(filter %ensemble,$(ROWS)),$(call results,$(row))): $$(call trained,$$($$(notdir $$(@D))))
	$(call evaluate,$(DECODING))
