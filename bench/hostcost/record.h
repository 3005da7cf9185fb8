// A list of what a step enqueues: kernels, products, copies, events, all-reduces. C enqueues it again.
#ifndef HOSTCOST_RECORD_H
#define HOSTCOST_RECORD_H

enum { KERNEL, PRODUCT, BIAS, COPY, EVENT, WAIT, REDUCE, POLL, KINDS };

// record_begin starts a list of what the calling thread enqueues; record_end ends it.
void record_begin(void);
void record_end(void);

// record_count returns the number of calls of a kind in the list.
int record_count(int kind);

// record_again enqueues the list n times and waits for the end. *took becomes the time in seconds. If it
// is not null, each[kind] becomes the time of the calls of each kind. The result is the first error's code.
int record_again(int n, double *took, double *each);

#endif
