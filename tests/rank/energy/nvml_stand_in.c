/* A driver's library for machines without one: what a board says lies in files of $NVML_STAND_IN.
 * A file that is missing is a query that the board does not support. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

static int read_number(const char *name, unsigned long long *value)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("NVML_STAND_IN"), name);
    FILE *file = fopen(path, "r");
    if (!file)
        return NOT_SUPPORTED;
    int read = fscanf(file, "%llu", value);
    fclose(file);
    return read == 1 ? SUCCESS : NOT_SUPPORTED;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return SUCCESS; }

const char *nvmlErrorString(int code) { return code == NOT_FOUND ? "Not Found" : "Not Supported"; }

int nvmlDeviceGetHandleByUUID(const char *uuid, void **board)
{
    *board = (void *)1;
    return strcmp(uuid, getenv("NVML_STAND_IN_UUID")) ? NOT_FOUND : SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(void *board, unsigned long long *millijoules)
{
    (void)board;
    return read_number("energy_mj", millijoules);
}

int nvmlDeviceGetPowerUsage(void *board, unsigned *milliwatts)
{
    unsigned long long value = 0;
    int code = read_number("power_mw", &value);
    (void)board;
    *milliwatts = value;
    return code;
}

int nvmlDeviceGetMigMode(void *board, unsigned *current, unsigned *pending)
{
    unsigned long long value = 0;
    int code = read_number("mig", &value);
    (void)board;
    *current = *pending = value;
    return code;
}
