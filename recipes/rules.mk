# What the recipes share: how a row of a table is trained, scored on the test images, and put into the table.
#
# A row with a seed has the folder $(RUNS)/ROW/SEED. Its file `trained` is made when its training is complete; until then
# `train resume=true` starts or resumes it, so the same make continues after any interruption. A result file gets its name
# when it is complete. To train a row again, delete its folder and those of the rows that start from it.
#
#   ROOT       the folder of the data set
#   ROWS       the rows of the table; those that they start from are trained, too
#   SEEDS      the seeds of each row
#   DECODINGS  how the test images are captioned: beam3 is decoding.beam_size=3, consensus is decoding=consensus
#   SETTINGS   of all trainings, such as trainer.precision=bf16-mixed; choose other RUNS for other settings
#   BOXES      ground-truth boxes for the scores of attention maps, such as dataset.entities=entities.zip
#   RUNS       the folder of runs and tables
SEEDS ?= 1 2 3
DECODINGS ?= beam1 beam3 beam5 consensus
SHOWATTENDTELL ?= showattendtell

space := $() $()
comma := ,
DATA = $(ROOT:%='dataset.root=%')
WEIGHTS = $(subst $(space),$(comma),$(patsubst %/trained,%/best.ckpt,$(filter %/trained,$^)))
DECODING = $(patsubst decoding=beam%,decoding.beam_size=%,decoding=$(@F:results-test-%.json=%))

# files: `trained` of the rows $1 with each seed; the results of a row, or of an ensemble of all seeds
trained = $(foreach part,$1,$(SEEDS:%=$(RUNS)/$(part)/%/trained))
results = $(foreach place,$(if $(filter %ensemble,$1),$1,$(SEEDS:%=$1/%)),$(DECODINGS:%=$(RUNS)/$(place)/results-test-%.json))

define train
$(SHOWATTENDTELL) train $(DATA) $1 seed=$* hydra.run.dir=$(@D) resume=true $(SETTINGS)
@touch $@
endef

define average
@rm -f $(@D)/best.ckpt
$(SHOWATTENDTELL) average 'checkpoint=[$(WEIGHTS)]' output=$(@D)/best.ckpt
@touch $@
endef

define evaluate
@rm -f $@.part
$(SHOWATTENDTELL) evaluate 'checkpoint=[$(WEIGHTS)]' $(DATA) $1 output=$@.part
@mv $@.part $@
endef

.DEFAULT_GOAL := $(RUNS)/$(TABLE).html
.SECONDARY:  # keeps the files that lead to a result
.SECONDEXPANSION:  # of $$

$(RUNS)/$(TABLE).html: $(foreach row,$(ROWS),$(call results,$(row)))
	@rm -f $(basename $@).md $(basename $@).tex $@
	$(SHOWATTENDTELL) report $(ROWS:%=$(RUNS)/%) 'output=[$(basename $@).md,$(basename $@).tex,$@]'

$(RUNS)/%.json: $$(@D)/trained
	$(call evaluate,$(DECODING) $(BOXES))
