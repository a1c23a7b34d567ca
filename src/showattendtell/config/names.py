"""Names of settings that this project takes, and names in other projects at which an error tells the one here."""

SHORT_NAMES = {
    "optimizer.lr": "lr learning_rate",
    "optimizer.weight_decay": "wd",
    "trainer.max_epochs": "epochs max_epochs num_epochs n_epochs epoch",
    "trainer.devices": "gpus num_gpus",
    "trainer.gradient_clip_val": "grad_clip",
    "data.batch_size": "batch_size bs",
    "dataset.root": "root data_dir data_path",
    "encoder.learning_rate": "encoder_lr",
    "decoder.hidden_dim": "hidden_dim hidden_size",
    "decoder.embedding_dim": "emb_dim embed_dim embed_size",
    "decoder.dropout": "dropout",
    "loss.doubly_stochastic_weight": "alpha_c",
    "callbacks.early_stopping.patience": "patience",
    "decoding.beam_size": "beam_size num_beams",
    "decoding.max_length": "max_len",
}
"""Settings and their short names, in this project and others. No command has such a name at the top."""

ALIASES = {short: name for name, given in SHORT_NAMES.items() for short in given.split()}

OTHERS = """
dataset=NAME: data data_name dataset_name
dataset.root: data_folder dataset_dir image_folder
dataset.captions or references: annotations ann_file caption_file captions_file input_json
encoder.network or encoder=NAME: arch backbone cnn encoder_name
encoder.network or decoder=NAME or checkpoint: model model_name
encoder.weights or init_from or checkpoint: pretrained weights
encoder.size: enc_image_size image_size img_size imgsz input_size resolution
encoder.trainable: fine_tune_encoder finetune freeze freeze_encoder train_encoder
decoder.hidden_dim: d_model decoder_dim rnn_size
decoder.dropout: drop drop_prob_lm drop_rate dropout_rate
attention.score.width: att_hid_size attention_dim
vocabulary.size: min_word_freq vocab_size word_count_threshold
loss.label_smoothing: label_smoothing_factor smoothing
augment.flip or augment.crop: aug augmentation hflip horizontal_flip transforms
init_from or resume or checkpoint: checkpoint initial_checkpoint load_from model_name_or_path model_path
resume: resume_from resume_from_checkpoint start_epoch
optimizer.lr: base_lr decoder_lr init_lr lr0
optimizer.betas: adam_beta1 adam_beta2 beta1
optimizer=NAME: opt optim
schedule.final: lrf
schedule=NAME: cos_lr lr_scheduler lr_scheduler_type sched scheduler
schedule.warmup or schedule=NAME: num_warmup_steps warmup_epochs warmup_ratio warmup_steps
data.batch_size: batch per_device_train_batch_size train_batch_size
data.generation_batch_size: eval_batch_size per_device_eval_batch_size val_batch_size validation_batch_size
data.num_workers: dataloader_num_workers workers
trainer.max_epochs: num_train_epochs
trainer.max_time: max_hours time
trainer.accumulate_grad_batches: accumulate grad_accum_steps gradient_accumulation_steps
trainer.gradient_clip_val: clip_grad grad_norm gradient_clip max_grad_norm
trainer.precision: amp bf16 fp16 half mixed_precision use_amp
trainer.accelerator or device: cuda device gpu no_cuda use_gpu
trainer.log_every_n_steps: log_interval logging_steps print_freq
trainer.val_check_interval: eval_steps eval_strategy evaluation_strategy val_interval
trainer.limit_train_batches: fraction max_train_samples subset
trainer.fast_dev_run or debug=NAME: dry_run fast_dev
checkpoint_interval_minutes: checkpoint_interval save_every save_period save_steps save_strategy
monitor or metrics: eval_metric metric_for_best_model optimized_metric
callbacks.early_stopping.patience: early_stopping early_stopping_patience patience_epochs
callbacks=ema: ema ema_decay model_ema
logger=NAME: log_wandb report_to use_wandb wandb
hydra.run.dir: exist_ok logging_dir overwrite_output_dir
tags: tag task_name wandb_tags
hydra.run.dir or output: exp_name experiment_name log_dir name out_dir output output_dir project run_name save_dir
sweep=NAME: hparams_search sweep_config
experiment=NAME: config config_file recipe
the command evaluate: do_eval do_test eval evaluate test train
decoding.beam_size: beam beam_width beams
decoding.max_length: max_caption_length max_new_tokens max_seq_len max_seq_length
decoding.num_captions: n_captions num_return_sequences
decoding=sample: do_sample nucleus temperature top_k top_p
images: image img input photo source
hypotheses: candidates predictions preds results
references: ground_truth gts refs
"""
"""What a name means in lightning-hydra-template, timm, Hugging Face, Ultralytics and sgrvinod's tutorial."""

MEANT = {short: [name] for short, name in ALIASES.items()}
for _line in OTHERS.strip().splitlines():
    _meant, _, _names = _line.partition(": ")
    MEANT |= dict.fromkeys(_names.split(), _meant.split(" or "))
