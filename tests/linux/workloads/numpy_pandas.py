import numpy as np
import pandas as pd

matrix = np.arange(250_000.0).reshape(500, 500)
print(float((matrix @ matrix.T).trace()), float(np.linalg.svd(matrix[:50, :50])[1][0].round(3)))
frame = pd.DataFrame({"a": range(1000), "b": list("xyxy") * 250})
frame.to_csv("f.csv")
print(pd.read_csv("f.csv").groupby("b").a.sum().to_dict())
