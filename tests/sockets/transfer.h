// Ways to send and to receive, each behind one signature, so that tables of cases can vary them.
#ifndef TRANSFER_H
#define TRANSFER_H
#include "body.h"

typedef struct {
    const char *name;
    ssize_t (*send)(int fd, const char *bytes, size_t count);
} Sender;

typedef struct {
    const char *name;
    ssize_t (*receive)(int fd, char *into, size_t count);
} Receiver;

extern const Sender senders[];
extern const Receiver receivers[];
enum { SENDERS = 9, RECEIVERS = 8 };

// Adds a case for each way to send, or to receive; its name is `family/way`.
void add_senders(const char *family, void (*run)(const Case *));
void add_receivers(const char *family, void (*run)(const Case *));

#endif
