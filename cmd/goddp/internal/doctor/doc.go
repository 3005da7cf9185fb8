// Package doctor finds what makes a job fail or run slowly, on one host or on all hosts of a job. It
// implements "goddp doctor".
//
// A probe reads facts and judges nothing: [Probe] reads a host, and [Measure] what only a process
// group can show. [Judge] takes the [Facts] of all ranks and does no input or output. It applies each
// check. A check returns either findings or a line that says what is good. A [Finding] holds both values
// that disagree, and how to correct them. docs/doctor.md has a section for each check, with the reason
// for its threshold.
//
// A threshold is chosen so that a good host has no finding. So a check compares ranks with each other
// where it can, because hosts of one job differ less than kinds of hosts.
package doctor
