// Stands for the header of this name.
#pragma once

#include "hopper.h"
