// Package timeline reads the traces that package profile writes of the ranks of a job, and puts them on one clock. It
// says where the time of a step went: how long each rank computed, communicated without computing, and was idle, and
// which rank the others waited for. It compares two jobs, merges the traces of a job, and finds the step to draw.
package timeline
