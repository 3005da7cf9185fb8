// Command goddp is the tools:
//
//	golaunch --nproc-per-node 4 goddp bench all_reduce -b 1K -e 64M
//	goddp dump JOB     # what every rank is doing
//	goddp analyze DIR  # which of them is the culprit
//	goddp plot run.jsonl -o curve.svg
//	goddp tokens input.txt -o shards
//	goddp checkpoint ls FOLDER
//
// "goddp --help" lists its commands, "goddp COMMAND --help" what each takes.
// The exit code is 2 for a command line that makes no sense.
package main
