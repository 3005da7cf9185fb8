// Command goddp holds the tools of goddp:
//
//	golaunch --nproc-per-node 4 goddp bench all_reduce -b 1K -e 64M
//	golaunch --nproc-per-node gpu goddp tune # which of NCCL's settings to change
//	goddp doctor       # what would make a job fail or run slowly
//	goddp dump JOB     # what every rank is doing
//	goddp analyze DIR  # which of them is the culprit
//	goddp trace trace*.json # where the time of a step went, and which rank is the slowest
//	goddp plot run.jsonl -o curve.svg
//	goddp page runs/one runs/two
//	goddp tokens input.txt -o shards --tokenizer MODEL
//	goddp generate MODEL 'What is DDP?'
//	goddp merge MODEL ADAPTERS OUT
//	goddp memory MODEL --batch 8 --recompute cheap --gpu 40
//	goddp gguf MODEL model.gguf --type q8_0
//	goddp checkpoint ls FOLDER
//
// "goddp --help" lists the commands, and "goddp COMMAND --help" their arguments. The exit
// code is 2 if the command line is wrong, and for doctor also if it finds what makes a job fail.
package main
