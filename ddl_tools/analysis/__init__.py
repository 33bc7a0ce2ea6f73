"""Tables and figures from records, without torch.

``records -> tables -> configurations -> points -> figures``: each step is a function of the one
before.
"""

import pandas as pd

# Else columns of type "string", and what comparing them gives, have other types where pyarrow is
# installed, some of which lack operations.
pd.set_option("mode.string_storage", "python")
